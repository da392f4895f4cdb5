#!lua
-- Loads a sale into the gate in the state `loading`, in which nothing is sold. It does not overwrite a sale,
-- because loading it a second time would sell the units again that it has already sold.
--
-- KEYS  1 sale   2 items   3 stock
-- ARGV  1 epoch  2 how many of the next arguments are the sale's fields: name value
--       then for each item: sku stock version
-- Reply loaded | {present, state, epoch, seq}

local present = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq')
if present[1] then return {'present', present[1], tonumber(present[2]), tonumber(present[3])} end

-- First, because Redis looks for the fields of a small hash from its beginning, and the fronts keep reading these.
redis.call('HSET', KEYS[1], 'state', 'loading', 'epoch', ARGV[1], 'seq', 0)
local fields = tonumber(ARGV[2])
for at = 3 + fields, #ARGV, 3 do
  local sku, stock, version = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  redis.call('HSET', KEYS[2], sku, stock)
  redis.call('HSET', KEYS[3], sku, stock)
  redis.call('HSET', KEYS[1], 'version:' .. sku, version)
end
for at = 3, 2 + fields, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
return 'loaded'
