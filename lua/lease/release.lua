#!lua flags=allow-oom
-- Releases leases of one scope, only the caller's, and notifies waiters. A lease with a minimum time that is not
-- over stays taken, but without an owner, so that no renewal in flight can extend it. May be repeated.
--
-- KEYS  1 leases; the message with the names goes to the channel of the same name
-- ARGV  1 owner    2 minimum time of the leases, in ms since they were taken    then each name
-- Reply {1|0...}, 1 if the lease still belonged to the caller: nobody has taken it, even if it has ended

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local held = redis.call('HMGET', KEYS[1], '|waiting', unpack(ARGV, 3))

local least = tonumber(ARGV[2])
local reply, freed = {}, {}
local text, owner, rest
for at = 1, #held - 1 do
  -- Leases taken in one call have the same text unless they were renewed, so it is parsed once.
  if held[at + 1] ~= text then
    text = held[at + 1]
    owner, rest = string.match(text or '', '^%d+|(%x+)(.*)$')
  end
  reply[at] = 0
  if owner == ARGV[1] then
    reply[at] = 1
    local stays = least > 0 and tonumber(string.match(rest, '^|%d+|(%d+)|')) + least or 0
    if stays > now then
      local value = stays .. '|' .. string.rep('0', 32) .. rest
      redis.call('HSET', KEYS[1], ARGV[at + 2], value)
    else
      freed[#freed + 1] = ARGV[at + 2]
    end
  end
end
if #freed > 0 then
  redis.call('HDEL', KEYS[1], unpack(freed))
  -- Waiters poll every second and record then that they wait. pcall, so that the leases are released even if
  -- Redis does not allow this user to publish.
  if held[1] and now - tonumber(held[1]) < 3000 then
    redis.pcall('PUBLISH', KEYS[1], table.concat(freed, ' '))
  end
end
return reply
