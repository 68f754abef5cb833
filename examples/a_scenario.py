"""Run a scenario: stimuli as text, each followed by the messages that the core must send.

Lines that begin with `>` list all messages of the stimulus above, in order. The files in
`tests/scenarios/` use a larger form of this language. Change a line and run the example again.
"""

from paceline.protocol.messages import WorkerStatusChange
from paceline.scheduler.core.stimuli import WorkerRemoved
from paceline.scheduler.core.turn import Outbox
from toy_cluster import ToyCluster

SCENARIO = """
submit data; result=data; wanted result
> worker-0: compute-task data
finish data on worker-0
> worker-0: compute-task result
status paused on worker-0
finish result on worker-0
> me: key-in-memory result
> worker-0: free-keys data
lose worker-0
> me: lost-data result
> worker-0: close
> worker-1: compute-task data
> worker-1: remove-worker
finish data on worker-1
> worker-1: compute-task result
finish result on worker-1
> me: key-in-memory result
> worker-1: free-keys data
"""


def describe(outbox: Outbox) -> list[str]:
    """Return one line per message in `outbox`, in the order in which the driver sends them."""
    lines = []
    for peer, messages in (*outbox.clients.items(), *outbox.workers.items()):
        name = peer if peer == "me" else f"worker-{peer.rsplit('.', 1)[1].split(':')[0]}"
        for message in messages:
            keys = getattr(message, "key", None) or " ".join(getattr(message, "keys", ()))
            lines.append(f"> {name}: {message.op()} {keys}".rstrip())
    return lines


class Player:
    """Applies stimuli, one per line, to a toy cluster of two workers."""

    def __init__(self) -> None:
        self.cluster = ToyCluster(n_workers=2)

    def play(self, line: str) -> list[str]:
        verb, *words = line.split()
        address = f"tcp://10.0.0.{words[-1].removeprefix('worker-')}:40000"
        state = self.cluster.core.state
        if verb == "submit":
            *tasks, last = line.removeprefix("submit ").split("; ")
            graph = {t.split("=")[0]: t.split("=")[1:] for t in tasks}
            outbox = self.cluster.submit(graph, last.split()[1:])
        elif verb == "finish":
            outbox = self.cluster.finish(address, state.tasks[words[0]])
        elif verb == "status":
            outbox = self.cluster.send(address, WorkerStatusChange(status=words[0]))
        else:
            outbox = self.cluster.send("", WorkerRemoved(address=address))
        return describe(outbox)


player, got = Player(), []
for line in SCENARIO.strip().splitlines():
    if not line.startswith(">"):
        got += [line, *player.play(line)]
print("\n".join(got))
assert got == SCENARIO.strip().splitlines(), "the core sent other messages than expected"
