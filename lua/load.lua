#!lua
-- Loads a sale into the gate, in the state `loading`, in which nothing is sold. Refuses to
-- overwrite: a sale that is loaded has sold units that a second load would sell again.
--
-- KEYS  1 sale   2 items   3 stock
-- ARGV  1 epoch  2 name  3 opens_at  4 closes_at ('' for none)  5 limit
--       then for each item: sku stock
-- Reply loaded | {present, state, epoch, seq}

local present = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq')
if present[1] then return {'present', present[1], tonumber(present[2]), tonumber(present[3])} end

for at = 6, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 1])
end
redis.call('HSET', KEYS[1], 'state', 'loading', 'epoch', ARGV[1], 'seq', 0, 'name', ARGV[2],
  'opens_at', ARGV[3], 'closes_at', ARGV[4], 'limit', ARGV[5])
return 'loaded'
