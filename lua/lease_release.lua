#!lua flags=allow-oom
-- Gives leases back, those of the caller alone. May be repeated.
--
-- KEYS  the leases
-- ARGV  1 owner
-- Reply how many were the caller's and are free now

local released = 0
local mine = ARGV[1] .. '|'
for at = 1, #KEYS do
  local held = redis.call('GET', KEYS[at])
  if held and string.sub(held, 1, #mine) == mine then
    released = released + redis.call('DEL', KEYS[at])
  end
end
return released
