"""What a command did, as the policy reads it."""

from __future__ import annotations

from tunix_core.sandboxes import ExecResult

MAX_CHARS = 10_000


def shortened(text: str, most: int = MAX_CHARS) -> str:
    """The text, or its first and last half of `most` characters with a line between that says what is left out."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def decoded(data: bytes) -> str:
    """Bytes as text that can be shown: what is not UTF-8 is replaced, and control characters are escaped."""
    text = data.decode(errors="replace")
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def told(result: ExecResult, timeout_s: float, most: int = MAX_CHARS) -> str:
    """Output, and a last line in brackets where something else than success is to be said."""
    output = shortened(decoded(result.stdout + result.stderr), most)
    if result.timed_out:
        end = f"[killed after {timeout_s:g} s]"
    elif result.exit_code:
        end = f"[exit status {result.exit_code}]"
    else:
        end = "" if output else "[no output]"
    return f"{output.rstrip(chr(10))}\n{end}" if output and end else output or end
