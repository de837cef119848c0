"""A client whose types quicktype makes of the document: it runs an agent and reads the run's state. client.py URL"""
import json
import sys
import urllib.error
import urllib.request

import wire

base = sys.argv[1]


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(base + path, data=data, method=method)) as answer:
        return json.load(answer)


answer = wire.RunAnswer.from_dict(call("POST", "/agents/shout/run", wire.RunBody.from_dict({"input": "generated"}).to_dict()))
assert answer.status is wire.RunAnswerStatus.COMPLETED and answer.result.output == "GENERATED", answer

run = wire.Snapshot.from_dict(call("GET", "/runs/" + answer.run_id + "/state"))
assert run.run_id == answer.run_id and run.usage.total_tokens >= 0, run

try:
    call("GET", "/runs/none/state")
    raise AssertionError("a run that does not exist has a state")
except urllib.error.HTTPError as refused:
    error = wire.Error.from_dict(json.load(refused))
    assert error.error == "run-not-found" and error.hint, error

print("The generated Python types carried a run of an agent.")
