-- wrk replays the bodies of a JSONL file in turn, each request rendered once: the like for like of a dataset replay.
local requests, at = {}, 0

function init()
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  for line in io.lines(os.getenv("REPLAY_FILE")) do
    requests[#requests + 1] = wrk.format(nil, nil, nil, line)
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end
