"""Golden runs: what halfwise decides about some 200 models, frozen, to rebuild it by.

    python -m tests.golden compare [NAME…] [--jobs N]    exit code 1 where anything differs
    python -m tests.golden renew NAME… [--jobs N]        the reason belongs in the commit
    python -m tests.golden list [NAME…]

NAME is an entry (`cases/convs`), a group of them (`cases`), or a pattern (`classes/*/no-repair`).
The facts are in `<group>.json`; `comparing.py` has the rules. Only the command line, its exit code
and `run.json` are read, the last by `facts.py` alone. Models of the group `published` are taken
from the folder that HALFWISE_BENCH_MODELS names, and left out without it.
"""
