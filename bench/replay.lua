-- wrk replays the bodies of a JSONL file in turn, each request rendered once: the like for like of a dataset replay.
local requests, at = {}, 0

function init()
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  for line in io.lines(os.getenv("REPLAY_FILE")) do
    requests[#requests + 1] = wrk.format(nil, nil, nil, line)
  end
  -- CPU of the process so far: rendering is no part of a request's cost, and whoever reads this takes it off.
  print("rendered after CPU seconds " .. os.clock())
end

function request()
  at = at % #requests + 1
  return requests[at]
end
