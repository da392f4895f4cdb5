#!lua flags=allow-oom
-- Takes leases of one scope, many in one call, for one owner and by Redis's clock. The fencing
-- token rises also when Redis lost its data: it is never below the microseconds of that clock.
--
-- KEYS  1 leases
-- ARGV  1 owner    2 ms that the leases last    3 who holds them, for people
--       4 any  those that are free
--         all  all of them, or none
--       then each name
-- Reply {token | -ms...}: the token of a lease that was taken, 0 for one that is free and was not
--       taken because another is held, or minus the ms for which somebody else holds it

local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = math.floor(clock / 1000)
local held = redis.call('HMGET', KEYS[1], '|fence', unpack(ARGV, 5))

local token = math.max(tonumber(held[1] or '0') + 1, clock)
local text = string.format('%.0f', token)
local value = string.format('%.0f|%s|%s|%.0f|%s', now + tonumber(ARGV[2]), ARGV[1], text, now, ARGV[3])

local reply, writes, busy = {}, {'|fence', text}, false
for at = 2, #held do
  local ends = held[at] and tonumber(string.match(held[at], '^%d+'))
  if ends and ends > now then
    reply[at - 1], busy = now - ends, true
  else
    reply[at - 1] = token
    writes[#writes + 1] = ARGV[at + 3]
    writes[#writes + 1] = value
  end
end

if busy and ARGV[4] == 'all' then
  for at = 1, #reply do reply[at] = math.min(reply[at], 0) end
  return reply
end
if #writes == 2 then return reply end
redis.call('HSET', KEYS[1], unpack(writes))
-- Thirty days: no lease lasts that long, and what has no leases any more is not kept.
redis.call('EXPIRE', KEYS[1], 2592000)

-- What a killed holder left has ended, and would stay here until somebody asks for it: some are
-- looked at with each taking, as many as are taken.
local random = redis.call('HRANDFIELD', KEYS[1], math.min(#writes / 2, 100), 'WITHVALUES')
for at = 1, #random, 2 do
  local ends = tonumber(string.match(random[at + 1], '^(%d+)|'))
  if ends and ends <= now then redis.call('HDEL', KEYS[1], random[at]) end
end
return reply
