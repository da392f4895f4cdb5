#!lua flags=allow-oom
-- Begins to rebuild a sale, even one that Redis no longer knows, by freezing it in a new epoch. If two rebuilds run
-- at once, the one with the lower epoch is refused when it loads.
--
-- KEYS  1 sale   2 items   3 stock
-- ARGV  1 epoch    higher than every known one
--       2 how many of the next arguments are the sale's fields: name value    then each sku
-- Reply {begun, state, epoch, before, known} with the state and the epoch before this rebuild, or '' and 0; the number
--         before the first rebuild since the last load; and the highest number that froze the sale, or ''
--       {behind, epoch} if the gate's own epoch is not lower

local before = redis.call('HMGET', KEYS[1], 'epoch', 'state', 'seq', 'before', 'known')
local epoch = tonumber(before[1] or '0')
if epoch >= tonumber(ARGV[1]) then return {'behind', epoch} end
-- Until a rebuild is loaded.
local number = before[4] or ((before[1] or '0') .. ' ' .. (before[3] or '0'))
redis.call('HSET', KEYS[1], 'state', 'frozen', 'epoch', ARGV[1], 'seq', 0, 'before', number)
local fields = tonumber(ARGV[2])
for at = 3, 2 + fields, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
-- Creates the items, so that buyers hear that the sale is paused, and not that the item is unknown.
for at = 3 + fields, #ARGV do
  redis.call('HSETNX', KEYS[2], ARGV[at], 0)
  redis.call('HSETNX', KEYS[3], ARGV[at], 0)
end
return {'begun', before[2] or '', epoch, number, before[5] or ''}
