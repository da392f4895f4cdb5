#!lua flags=allow-oom
-- Takes the leases that are free, of many keys in one call. The fencing token rises also when
-- Redis lost its data: it is never below the microseconds of Redis's clock.
--
-- KEYS  1 fence    then the leases
-- ARGV  1 owner    2 ms that the leases last
-- Reply {token...}, 0 for a lease that somebody else holds

local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, clock)
local text = string.format('%.0f', token)
local reply, taken = {}, false
for at = 2, #KEYS do
  if redis.call('SET', KEYS[at], ARGV[1] .. '|' .. text, 'NX', 'PX', ARGV[2]) then
    reply[at - 1], taken = text, true
  else
    reply[at - 1] = '0'
  end
end
if taken then redis.call('SET', KEYS[1], text) end
return reply
