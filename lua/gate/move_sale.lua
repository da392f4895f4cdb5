#!lua flags=allow-oom
-- Moves a sale to another state, if it is in one of those that the move may start from. Takes a
-- number, so that a lost pause is noticed like a lost order. Begins with known.lua.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest number that is known of this sale
--       3 to     then the states that the move may start from
-- Reply not_loaded | {moved, epoch, seq} | {already, epoch, seq} | {refused, state}

if not state then return 'not_loaded' end
if state == ARGV[3] then return {'already', epoch, seq} end
-- What is behind may be closed, and nothing else.
if behind and ARGV[3] ~= 'closed' then return {'refused', state} end

for at = 4, #ARGV do
  if state == ARGV[at] then
    redis.call('HSET', KEYS[1], 'state', ARGV[3], 'seq', seq + 1)
    return {'moved', epoch, seq + 1}
  end
end
return {'refused', state}
