#!lua flags=allow-oom
-- Gives leases of one scope back, those of the caller alone, and tells those who wait. What
-- must stay for a while is nobody's from then on: no renewal under way prolongs it. May be repeated.
--
-- KEYS  1 leases; the message with the names goes to the channel of the same name
-- ARGV  1 owner    2 ms from the taking for which the leases last at least    then each name
-- Reply {1|0...}: was it still the caller's?

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local held = redis.call('HMGET', KEYS[1], '|waiting', unpack(ARGV, 3))

local least = tonumber(ARGV[2])
local reply, freed = {}, {}
local text, ends, owner, rest
for at = 1, #held - 1 do
  -- What was taken in one call has one text, unless it was renewed: it is read once.
  if held[at + 1] ~= text then
    text = held[at + 1]
    ends, owner, rest = string.match(text or '', '^(%d+)|(%x+)(.*)$')
    ends = tonumber(ends)
  end
  reply[at] = 0
  if owner == ARGV[1] then
    if ends > now then reply[at] = 1 end
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
  -- Those who wait look by themselves every second, and say then that they wait. Without the
  -- right to publish it is released all the same.
  if held[1] and now - tonumber(held[1]) < 3000 then
    redis.pcall('PUBLISH', KEYS[1], table.concat(freed, ' '))
  end
end
return reply
