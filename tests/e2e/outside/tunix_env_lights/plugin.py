from tunix_core import EnvSpec, Option, hookimpl


@hookimpl
def tunix_register_envs(register):
    register(
        EnvSpec(
            id="lights/switch",
            target="tunix_env_lights.switch:Switch",
            tasks="tunix_env_lights.switch:make_tasks",
            summary="Turn on every lamp of a row.",
            options={"lamps": Option(3, "how many lamps")},
            score_range=(0.0, 1.0),
            max_turns=3,
        )
    )
