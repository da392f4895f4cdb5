#!lua flags=allow-oom
-- Corrects how many units of an item are left, unless the sale was written to after the books were compared.
-- This is not a change of stock; a restock does that.
--
-- KEYS  1 sale   2 items
-- ARGV  1 epoch  2 seq     the gate's number when the books were compared
--       3 sku    4 units   to add; below 0 to take away
-- Reply not_loaded | moved | {adjusted, epoch, seq, left}

local sale = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq')
if not sale[1] then return 'not_loaded' end
if sale[2] ~= ARGV[1] or sale[3] ~= ARGV[2] then return 'moved' end
if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 0 then return 'moved' end

local left = redis.call('HINCRBY', KEYS[2], ARGV[3], ARGV[4])
local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
return {'adjusted', tonumber(sale[2]), seq, left}
