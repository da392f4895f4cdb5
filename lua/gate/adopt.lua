#!lua flags=allow-oom
-- Adds an order to the gate that only the database has: its user then holds it, and its units are no longer on
-- sale, even if that leaves less than zero. Begins with freeze_if_behind.lua.
--
-- KEYS  1 sale   2 items   3 users
-- ARGV  1 epoch  2 seq     the highest known number of this sale
--       3 user   4 id   5 record   6 sku   7 quantity
--       8        the time by Redis's clock after which nothing is done
-- Reply not_loaded | frozen | late | {adopted|held, epoch, seq}

if not state then return 'not_loaded' end
if state == 'frozen' then return 'frozen' end
if is_late() then return 'late' end

local kept = {}
for record in string.gmatch(redis.call('HGET', KEYS[3], ARGV[3]) or '', '[^,]+') do
  if string.match(record, '^(%x+)|') ~= ARGV[4] then
    kept[#kept + 1] = record
  -- If the order has ended in the gate but is live in the database, the database is right.
  elseif not string.find(record, '|%-%d+$') then
    return {'held', epoch, seq}
  end
end
kept[#kept + 1] = ARGV[5]
redis.call('HSET', KEYS[3], ARGV[3], table.concat(kept, ','))
redis.call('HINCRBY', KEYS[2], ARGV[6], -tonumber(ARGV[7]))
redis.call('HSET', KEYS[1], 'seq', seq + 1)
return {'adopted', epoch, seq + 1}
