#!lua flags=allow-oom
-- Records that leases are taken in a scope, so that it can be listed, and drops scopes unused for thirty days.
--
-- KEYS  1 scopes
-- ARGV  1 scope, or '' to list only
-- Reply {scope...}

local now = tonumber(redis.call('TIME')[1])
if ARGV[1] ~= '' then redis.call('ZADD', KEYS[1], now, ARGV[1]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 30 * 86400)
return redis.call('ZRANGE', KEYS[1], 0, -1)
