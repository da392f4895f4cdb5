#!lua flags=allow-oom
-- Sets all terms of a sale to those of its row. An older version changes nothing. Takes a number, so that a change
-- lost by Redis is detected like a lost order. Begins with freeze_if_behind.lua.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest known number of this sale
--       3 version of the terms    then each field: name value
-- Reply not_loaded | frozen | {applied|already, epoch, seq}

if not state then return 'not_loaded' end
if state == 'frozen' then return 'frozen' end
local version = tonumber(redis.call('HGET', KEYS[1], 'rules_version') or '0')
if version >= tonumber(ARGV[3]) then return {'already', epoch, seq} end

for at = 4, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
redis.call('HSET', KEYS[1], 'rules_version', ARGV[3], 'seq', seq + 1)
return {'applied', epoch, seq + 1}
