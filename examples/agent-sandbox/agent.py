"""
An agent that works in a VM. It may try anything there, because each step can be undone.

    python3 agent.py [INSTANCE]

`propose` stands for your model. The rest is what an agent needs from a sandbox: try several ideas at once on forks, keep the
one that passes, and roll back a step that broke something.
"""
import sys
from concurrent.futures import ThreadPoolExecutor

import berth

PROJECT = "/srv/project"
CHECK = f"cd {PROJECT} && sh check.sh"

# The task: `add.sh` subtracts.
SETUP = f"""
mkdir -p {PROJECT} && cd {PROJECT}
echo 'echo $(($1 - $2))' > add.sh
echo '[ "$(sh add.sh 2 3)" = 5 ] && echo passed || {{ echo "add.sh 2 3 is not 5"; exit 1; }}' > check.sh
"""


def propose(report: str) -> list[str]:
    """Commands that may mend what `report` complains about. Ask your model here. One of these is a disaster, as it may be."""
    return [
        f"rm -rf {PROJECT} /usr/bin",
        f"sed -i 's/-/*/' {PROJECT}/add.sh",
        f"sed -i 's/-/+/' {PROJECT}/add.sh",
    ]


def attempt(base: berth.Instance, number: int, command: str) -> bool:
    """Runs a command on a fork of the instance, and tells whether the check passes there. The fork is deleted."""
    fork = base.fork(f"{base.name}-try-{number}")
    try:
        with fork as vm:
            vm.exec(command, timeout_seconds=60)
            result = vm.exec(CHECK, timeout_seconds=60)
            print(f"try {number}: {command!r}: {result.stdout.strip()}")
            return result.exit_code == 0
    finally:
        fork.delete()


def main(name: str) -> None:
    base = berth.Instance.get_or_create(name, memory_mib=256)
    with base as vm:
        vm.exec(SETUP)
        report = vm.exec(CHECK).stdout
        print(f"at first: {report.strip()}")

        # Several ideas at once, each on a copy of the disk. A fork copies no data; it begins at the last flush.
        vm.flush()
        ideas = propose(report)
        with ThreadPoolExecutor(len(ideas)) as pool:
            passed = list(pool.map(lambda idea: attempt(base, *idea), enumerate(ideas, 1)))
        winner = ideas[passed.index(True)]
        vm.exec(winner)
        print(f"taken over: {winner!r}: {vm.exec(CHECK).stdout.strip()}")

        # A receipt: this state is in the object store, and can be returned to.
        good = vm.flush()["generation"]
        vm.exec(f"rm -rf {PROJECT}")
        print(f"after a bad step: {vm.exec(CHECK).stdout.strip()}")

    # The VM is stopped: the disk goes back to the good state.
    base.restore(good)
    with base as vm:
        print(f"rolled back to generation {good}: {vm.exec(CHECK).stdout.strip()}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agent")
