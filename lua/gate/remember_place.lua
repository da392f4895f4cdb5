#!lua flags=allow-oom
-- Remembers how far the database had come with a sale that the gate has lost. May be repeated.
--
-- KEYS  1 places
-- ARGV  1 sale
--     2 line  3 number   the highest known place
-- Reply remembered | higher, if a higher place was remembered before

local line, number = tonumber(ARGV[2]), tonumber(ARGV[3])
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then
  local known_line, known_number = string.match(known, '^(%d+) (%d+)$')
  known_line, known_number = tonumber(known_line), tonumber(known_number)
  if known_line and (known_line > line or known_line == line and known_number > number) then return 'higher' end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
return 'remembered'
