"""Read the story of a task to find out why it was computed twice.

Every transition is logged with its cause. A worker is lost with the only replica of `data`,
which is computed again on the other worker. `paceline replay FILE --key data` prints the same
from a journal.
"""

from paceline.scheduler.core.inspection.queries import story
from paceline.scheduler.core.stimuli import WorkerRemoved
from toy_cluster import ToyCluster, computes

cluster = ToyCluster(n_workers=2)

((first, compute),) = computes(cluster.submit({"data": [], "result": ["data"]}, ["result"]))
((same, _),) = computes(cluster.finish(first, compute))
assert same == first, "`result` runs where its data is"

((second, again),) = computes(cluster.send("", WorkerRemoved(address=first)))
assert again.key == "data" and second != first, "the other worker starts from the beginning"
((_, last),) = computes(cluster.finish(second, again))
cluster.finish(second, last)

print("when  key     from        to          because of")
for key, start, finish, _recommended, cause, when in story(cluster.core.state, "data"):
    print(f"{when:4.0f}  {key:7} {start:11} {finish:11} {cause}")

causes = [cause for *_, cause, _ in story(cluster.core.state, "data")]
assert any(cause.startswith("WorkerRemoved") for cause in causes)
assert cluster.core.state.tasks["result"].state == "memory"
