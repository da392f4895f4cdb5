#!lua flags=allow-oom
-- Gives a sale the terms that its row has, all of them. An older version changes nothing. Takes a
-- number, so that a change that Redis lost is noticed like a lost order.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest number that is known of this sale
--       3 version of the terms    then each field: name value
-- Reply not_loaded | frozen | {applied|already, epoch, seq}

local sale = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq', 'rules_version')
if not sale[1] then return 'not_loaded' end
local epoch, seq = tonumber(sale[2]), tonumber(sale[3])
local known_epoch, known_seq = tonumber(ARGV[1]), tonumber(ARGV[2])
if sale[1] ~= 'closed' and (epoch < known_epoch or (epoch == known_epoch and seq < known_seq)) then
  redis.call('HSET', KEYS[1], 'state', 'frozen')
  return 'frozen'
end
if sale[1] == 'frozen' then return 'frozen' end
if tonumber(sale[4] or '0') >= tonumber(ARGV[3]) then return {'already', epoch, seq} end

for at = 4, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
redis.call('HSET', KEYS[1], 'rules_version', ARGV[3], 'seq', seq + 1)
return {'applied', epoch, seq + 1}
