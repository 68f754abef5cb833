"""Reading a story: why was this task computed twice?

Every transition is logged with its cause. A worker dies with the only copy of `data`, which is computed again on the
other one; the story of `data` says so. `paceline replay FILE --key data` reads the same from a journal.
"""

from paceline.scheduler.core.stimuli import WorkerGone
from paceline.scheduler.core.story import story
from toy_cluster import ToyCluster, computes

cluster = ToyCluster(n_workers=2)

((first, compute),) = computes(cluster.submit({"data": [], "result": ["data"]}, ["result"]))
((same, _),) = computes(cluster.finish(first, compute))
assert same == first, "`result` goes where its data lies"

((second, again),) = computes(cluster.send("", WorkerGone(address=first)))
assert again.key == "data" and second != first, "the other worker starts from the beginning"
((_, last),) = computes(cluster.finish(second, again))
cluster.finish(second, last)

print("when  key     from        to          because of")
for key, start, finish, _recommended, cause, when in story(cluster.core.state, "data"):
    print(f"{when:4.0f}  {key:7} {start:11} {finish:11} {cause}")

causes = [cause for *_, cause, _ in story(cluster.core.state, "data")]
assert any(cause.startswith("WorkerGone") for cause in causes)
assert cluster.core.state.tasks["result"].state == "memory"
