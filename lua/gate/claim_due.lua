#!lua flags=allow-oom
-- Gives the sweep the entries that are due and postpones each of them, so that if the sweep dies, the next one
-- finds them again.
--
-- KEYS  1 outbox   2 due
-- ARGV  1 limit    at most this many entries
--       2 spacing  ms until an entry is due again
-- Reply {entry...}

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local later = string.format('%.0f', now + tonumber(ARGV[2]))
local entries = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, ARGV[1])) do
  local entry = redis.call('HGET', KEYS[1], id)
  if entry then
    entries[#entries + 1] = entry
    redis.call('ZADD', KEYS[2], later, id)
  else
    redis.call('ZREM', KEYS[2], id)
  end
end
return entries
