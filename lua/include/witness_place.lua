#!lua
-- After freeze_if_behind.lua, in every script that says how far the database has come with the sale. The gate keeps
-- the highest place, also while it is frozen, so that a database that lost commits is found to be behind.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq       as in freeze_if_behind.lua
--       3 line   4 number    the highest place of this sale that the caller knows
-- Reply (none) sets `line` and `number` to the highest known place for the script that follows

local line, number = 0, 0
if state then
  local known = redis.call('HMGET', KEYS[1], 'place_line', 'place_number')
  line, number = tonumber(known[1] or '0'), tonumber(known[2] or '0')
  local its_line, its_number = tonumber(ARGV[3]), tonumber(ARGV[4])
  if its_line > line or (its_line == line and its_number > number) then
    redis.call('HSET', KEYS[1], 'place_line', ARGV[3], 'place_number', ARGV[4])
    line, number = its_line, its_number
  end
end
