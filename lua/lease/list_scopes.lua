#!lua flags=allow-oom
-- Remembers that leases are taken in a scope, for those who look; forgets it after thirty days.
--
-- KEYS  1 scopes
-- ARGV  1 scope, or '' to ask alone
-- Reply {scope...}

local now = tonumber(redis.call('TIME')[1])
if ARGV[1] ~= '' then redis.call('ZADD', KEYS[1], now, ARGV[1]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 30 * 86400)
return redis.call('ZRANGE', KEYS[1], 0, -1)
