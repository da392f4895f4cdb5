#!lua
-- Loads the result of a rebuild in one step: who holds what, and what is left. The sale stays frozen.
--
-- KEYS  1 sale   2 items   3 stock   4 users   5 staged users, which replace the users
-- ARGV  1 epoch of the rebuild   2 how many users are staged
--       3 how many of the next arguments are the sale's fields: name value
--       then for each item: sku left stock version
-- Reply lost | {loaded, epoch, seq}

local sale = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq')
if sale[1] ~= 'frozen' or sale[2] ~= ARGV[1] then return 'lost' end

if redis.call('HLEN', KEYS[5]) ~= tonumber(ARGV[2]) then return 'lost' end

redis.call('DEL', KEYS[2], KEYS[3])
redis.call('HDEL', KEYS[1], 'before', 'known')
local fields = tonumber(ARGV[3])
for at = 4 + fields, #ARGV, 4 do
  local sku = ARGV[at]
  redis.call('HSET', KEYS[2], sku, ARGV[at + 1])
  redis.call('HSET', KEYS[3], sku, ARGV[at + 2])
  redis.call('HSET', KEYS[1], 'version:' .. sku, ARGV[at + 3])
  redis.call('HDEL', KEYS[1], 'outcome:' .. sku)
end
for at = 4, 3 + fields, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
-- A RENAME over a million users would free them here and now, while every other client waits.
redis.call('UNLINK', KEYS[4])
if redis.call('EXISTS', KEYS[5]) == 1 then
  redis.call('RENAME', KEYS[5], KEYS[4])
  redis.call('PERSIST', KEYS[4])
end
return {'loaded', tonumber(sale[2]), redis.call('HINCRBY', KEYS[1], 'seq', 1)}
