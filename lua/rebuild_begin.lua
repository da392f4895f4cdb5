#!lua flags=allow-oom
-- Begins to rebuild a sale, also one that Redis no longer knows: from now on it is frozen, in an epoch
-- of its own. Of two who rebuild at once the one with the lower epoch finds that out when he loads.
--
-- KEYS  1 sale
-- ARGV  1 epoch    higher than every one that is known    then each of the sale's fields: name value
-- Reply begun | {behind, epoch}, where the gate's own is not lower

local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
if epoch >= tonumber(ARGV[1]) then return {'behind', epoch} end
redis.call('HSET', KEYS[1], 'state', 'frozen', 'epoch', ARGV[1], 'seq', 0)
for at = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
return 'begun'
