#!lua flags=allow-oom
-- Freezes a sale whose gate is behind what is known of it elsewhere: it has lost writes, and what
-- it would sell may be sold already.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest number that is known anywhere
-- Reply not_loaded | {frozen|kept, epoch, seq}, with the gate's own number

local sale = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq')
if not sale[1] then return 'not_loaded' end

local epoch, seq = tonumber(sale[2]), tonumber(sale[3])
local known_epoch, known_seq = tonumber(ARGV[1]), tonumber(ARGV[2])
local behind = epoch < known_epoch or (epoch == known_epoch and seq < known_seq)
if not behind or sale[1] == 'closed' then return {'kept', epoch, seq} end

redis.call('HSET', KEYS[1], 'state', 'frozen')
return {'frozen', epoch, seq}
