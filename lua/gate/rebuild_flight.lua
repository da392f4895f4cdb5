#!lua
-- Puts orders in flight back into the outbox of a sale that is being rebuilt. Existing entries are left unchanged.
--
-- KEYS  1 sale   2 outbox   3 age   4 due
-- ARGV  1 epoch of the rebuild   2 ms until the sweep looks   then for each: id accepted_at entry
-- Reply lost | {put}, the number of orders put back

local sale = redis.call('HMGET', KEYS[1], 'state', 'epoch')
if sale[1] ~= 'frozen' or sale[2] ~= ARGV[1] then return 'lost' end

local time = redis.call('TIME')
local due = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[2])
local put = 0
for at = 3, #ARGV, 3 do
  if redis.call('HSETNX', KEYS[2], ARGV[at], ARGV[at + 2]) == 1 then
    redis.call('ZADD', KEYS[3], ARGV[at + 1], ARGV[at])
    redis.call('ZADD', KEYS[4], string.format('%.0f', due), ARGV[at])
    put = put + 1
  end
end
return {put}
