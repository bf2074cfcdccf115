"""The tutorial's commands end as the page says, and print what it shows."""

import shlex

from tools import failure_classes, readme


def test_every_command_of_the_tutorial_prints_what_the_page_shows(call, tmp_path):
    ran = 0
    for step in readme.STEP.finditer(readme.TUTORIAL.read_text(encoding="utf-8")):
        for line in step["command"].splitlines():
            name, *words = shlex.split(line)
            if name == "python":
                (ill,) = (
                    i for _, ills in failure_classes.families() for i in ills if i.name == words[1]
                )
                (tmp_path / ill.name).mkdir()
                failure_classes.save(ill, tmp_path / ill.name)
            elif name == "halfwise":
                ended = call(*words, screen=True)
                assert ended.code == int(step["code"] or 0), ended.err
                ran += 1
        if step["shown"]:
            shown = step["shown"].split("```text\n")[1].removesuffix("```")
            assert readme.plain(shown) == readme.plain(ended.out), f"{line}: run make readme"
    assert ran >= 7
