#!lua flags=allow-oom
-- Lists the leases of one scope, one page at a time, and deletes those that have ended for good.
--
-- KEYS  1 leases
-- ARGV  1 cursor: 0 for the first page; 0 in the reply means that this was the last    2 one name, or ''
--       3 ms by which the clock may step: see take.lua
-- Reply {now in ms, cursor, {name, lease...}}

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local cursor, found = '0', {}
if ARGV[2] ~= '' then
  found = {ARGV[2], redis.call('HGET', KEYS[1], ARGV[2]) or ''}
else
  local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 500)
  cursor, found = page[1], page[2]
end

local leases = {}
for at = 1, #found, 2 do
  local ends = tonumber(string.match(found[at + 1], '^(%d+)|'))
  if ends and ends > now - tonumber(ARGV[3]) then
    leases[#leases + 1] = found[at]
    leases[#leases + 1] = found[at + 1]
  elseif ends then
    redis.call('HDEL', KEYS[1], found[at])
  end
end
return {now, cursor, leases}
