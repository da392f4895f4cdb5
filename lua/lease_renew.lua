#!lua flags=allow-oom
-- Extends leases of the caller; one that has ended or is another's is not touched.
--
-- KEYS  the leases
-- ARGV  1 owner    2 ms from now that the leases last
-- Reply {1|0...}, 0 for a lease that is lost

local reply = {}
local mine = ARGV[1] .. '|'
for at = 1, #KEYS do
  local held = redis.call('GET', KEYS[at])
  if held and string.sub(held, 1, #mine) == mine then
    redis.call('PEXPIRE', KEYS[at], ARGV[2])
    reply[at] = 1
  else
    reply[at] = 0
  end
end
return reply
