#!lua flags=allow-oom
-- Extends leases of one scope, and never shortens one. A lease that belongs to someone else is left unchanged. One that has
-- ended and that nobody has taken since is still its owner's: the clock may have stepped. May be repeated.
--
-- KEYS  1 leases
-- ARGV  for each lease: owner, ms that it lasts from now on, name
-- Reply {1|0...}, 0 for a lease that is lost

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local names = {}
for at = 3, #ARGV, 3 do names[#names + 1] = ARGV[at] end
local held = redis.call('HMGET', KEYS[1], unpack(names))

local reply, writes = {}, {}
for at = 1, #names do
  local owner, lasts = ARGV[3 * at - 2], tonumber(ARGV[3 * at - 1])
  local ends, held_by, rest = string.match(held[at] or '', '^(%d+)|(%x+)(|.*)$')
  ends = tonumber(ends)
  if held_by == owner then
    reply[at] = 1
    writes[#writes + 1] = names[at]
    writes[#writes + 1] = math.max(ends, now + lasts) .. '|' .. owner .. rest
  else
    reply[at] = 0
  end
end
if #writes > 0 then
  redis.call('HSET', KEYS[1], unpack(writes))
  -- As when leases are taken: a scope must outlive its leases.
  redis.pcall('EXPIRE', KEYS[1], 2678400)
end
return reply
