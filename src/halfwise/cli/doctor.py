"""`halfwise doctor`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)


def command() -> None:
    """Show the versions and devices that a run depends on."""
    from halfwise import api
    from halfwise.render.terminal import print_facts

    print_facts(api.doctor())
