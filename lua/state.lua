#!lua flags=allow-oom
-- Moves a sale to another state, if it is in one of those that the move may start from. Takes a
-- number, so that a lost pause is noticed like a lost order.
--
-- KEYS  1 sale
-- ARGV  1 to     then the states that the move may start from
-- Reply not_loaded | {moved, epoch, seq} | {already, epoch, seq} | {refused, state}

local sale = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq')
if not sale[1] then return 'not_loaded' end
if sale[1] == ARGV[1] then return {'already', tonumber(sale[2]), tonumber(sale[3])} end

for at = 2, #ARGV do
  if sale[1] == ARGV[at] then
    local seq = tonumber(sale[3]) + 1
    redis.call('HSET', KEYS[1], 'state', ARGV[1], 'seq', seq)
    return {'moved', tonumber(sale[2]), seq}
  end
end
return {'refused', sale[1]}
