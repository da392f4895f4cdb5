#!lua flags=allow-oom
-- Removes a closed sale with nothing in flight from the gate.
--
-- KEYS  1 sale   2 items   3 stock   4 users   5 outbox   6 age   7 due   8 rates
-- ARGV  none
-- Reply not_loaded | unloaded | {refused, state, waiting}

local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'not_loaded' end
local waiting = redis.call('HLEN', KEYS[5])
if state ~= 'closed' or waiting > 0 then return {'refused', state, waiting} end

redis.call('UNLINK', unpack(KEYS))
return 'unloaded'
