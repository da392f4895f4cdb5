#!lua flags=allow-oom
-- Begins to rebuild a sale, also one that Redis no longer knows: from now on it is frozen, in an epoch
-- of its own. Of two who rebuild at once the one with the lower epoch finds that out when he loads.
--
-- KEYS  1 sale   2 items   3 stock
-- ARGV  1 epoch    higher than every one that is known
--       2 how many of the following are the sale's fields: name value    then each sku
-- Reply {begun, state} with that before, or '' | {behind, epoch}, where the gate's own is not lower

local before = redis.call('HMGET', KEYS[1], 'epoch', 'state')
local epoch = tonumber(before[1] or '0')
if epoch >= tonumber(ARGV[1]) then return {'behind', epoch} end
redis.call('HSET', KEYS[1], 'state', 'frozen', 'epoch', ARGV[1], 'seq', 0)
local fields = tonumber(ARGV[2])
for at = 3, 2 + fields, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
-- Buyers are told that the sale waits, and not that it has no such item.
for at = 3 + fields, #ARGV do
  redis.call('HSETNX', KEYS[2], ARGV[at], 0)
  redis.call('HSETNX', KEYS[3], ARGV[at], 0)
end
return {'begun', before[2] or ''}
