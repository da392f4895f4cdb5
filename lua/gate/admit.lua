#!lua
-- Decides many attempts of one sale, in the order given and by Redis's clock. Accepted orders are in the outbox
-- when this returns. Everything is decided before the first write, because a script that fails half way is not
-- rolled back.
--
-- KEYS  1 sale   2 items   3 users   4 outbox   5 age   6 due   7 rates
-- ARGV  1 epoch  2 seq     the highest number of this sale that the caller has seen
--       3 bound            entries that the outbox may hold; 0 admits nobody
--       4 grace            ms until the sweep looks at an unconfirmed entry
--       5 deadline         ms; a call that runs later decides nothing, because its buyers do not wait any more
--       then for each attempt: id user sku quantity key keyed(1|0) fingerprint
-- Reply not_loaded | {late, now} | {epoch, seq, now, waiting, limit, verdict...}; a verdict is one of
--       seq                the number of the accepted order
--       {in_flight, entry} {settled, id} {key_reused} {key_required}
--       {not_open, opens_at} {closed} {paused, message, seconds} {frozen} {rate_limited, user|sale|ended_orders, rate, ms}
--       {already_ordered, id} {purchase_limit, limit} {unknown_sku} {sold_out} {overloaded}

local sale_key, items_key, users_key = KEYS[1], KEYS[2], KEYS[3]
local outbox_key, age_key, due_key, rates_key = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local sale = redis.call('HMGET', sale_key, 'state', 'opens_at', 'closes_at', 'limit', 'epoch', 'seq',
  'rebuy', 'item_limits', 'user_rate', 'sale_rate')
if not sale[1] then return 'not_loaded' end

local state, limit = sale[1], tonumber(sale[4])
local opens_at, closes_at = tonumber(sale[2]), tonumber(sale[3])
local epoch, seq = tonumber(sale[5]), tonumber(sale[6])
local known_epoch, known_seq = tonumber(ARGV[1]), tonumber(ARGV[2])
local bound, grace = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_text = string.format('%.0f', now)
if now > tonumber(ARGV[5]) then return {'late', now_text} end
-- Built once, because formatting a number costs as much as a command.
local due_text = string.format('%.0f', now + grace)
local entry_begins = 'outbox|' .. epoch .. '|'
local entry_goes_on = '|' .. now_text .. '|' .. limit .. '|'
-- Rate buckets need fractions of a millisecond: at 5,000 a second each attempt counts for a fifth of one.
local exact = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000

-- A gate that is behind its callers has lost writes, so anything it would sell may already be sold.
if state ~= 'closed' and (epoch < known_epoch or (epoch == known_epoch and seq < known_seq)) then
  if state ~= 'frozen' then redis.call('HSET', sale_key, 'state', 'frozen') end
  state = 'frozen'
end

local waiting = redis.call('HLEN', outbox_key)
local rebuy, item_limits = sale[7] ~= '0', sale[8] == '1'
-- On a full Redis (bound 0) nothing is written and nobody is admitted.
local rated = bound > 0 and (sale[9] or '') .. (sale[10] or '') ~= ''
local seen, left, stock_writes = {}, {}, {}
local arrivals, rate_writes, longest = {}, {}, 0
-- Lists of pairs, as the commands take them, with their lengths, because `#` would search for the end each time.
-- `place` is the position of each user in the list of users' records.
local user_writes, outbox_writes, age_writes, due_writes = {}, {}, {}, {}
local users_length, length, place = 0, 0, {}

-- The users' orders, read in one command; orders accepted earlier in this call are added as they are accepted.
do
  local users = {}
  for at = 7, #ARGV, 7 do users[at / 7] = ARGV[at] end -- 1, 2, 3...
  if #users > 0 then
    local records = redis.call('HMGET', users_key, unpack(users))
    for nth, user in ipairs(users) do seen[user] = records[nth] or '' end
  end
end

local function left_of(sku)
  if left[sku] == nil then left[sku] = tonumber(redis.call('HGET', items_key, sku) or false) or false end
  return left[sku]
end

local limits = {}
local function limit_of(sku)
  if not item_limits then return nil end
  if limits[sku] == nil then
    limits[sku] = tonumber(redis.call('HGET', sale_key, 'limit:' .. sku) or false) or false
  end
  return limits[sku] or nil
end

-- A token bucket, stored as the time at which it is full again. Each attempt moves that time forward; it may be
-- ahead of now by as long as an empty bucket takes to fill. If it is further ahead than that, the clock was set back, and
-- the bucket counts as full: nobody waits for the clock to catch up. The bucket shared by all users is named '|'.
local function bucket(name, rate)
  local count, seconds = string.match(rate, '^(%d+)/(%d+)s$')
  local span = tonumber(seconds) * 1000
  if arrivals[name] == nil then
    arrivals[name] = tonumber(redis.call('HGET', rates_key, name) or false) or 0
  end
  longest = math.max(longest, tonumber(seconds))
  if arrivals[name] > exact + span + 1 then arrivals[name] = 0 end
  local full = math.max(arrivals[name], exact) + span / tonumber(count)
  return full, math.ceil(full - exact - span - 0.0005)
end

-- Takes one token from each bucket, or none from any.
local function limited(user)
  local buckets = {}
  if sale[9] and sale[9] ~= '' then buckets[#buckets + 1] = {user, sale[9], 'user'} end
  if sale[10] and sale[10] ~= '' then buckets[#buckets + 1] = {'|', sale[10], 'sale'} end
  for _, b in ipairs(buckets) do
    local wait
    b.full, wait = bucket(b[1], b[2])
    if wait > 0 then return {'rate_limited', b[3], b[2], wait} end
  end
  for _, b in ipairs(buckets) do
    arrivals[b[1]], rate_writes[b[1]] = b.full, true
  end
  return nil
end

-- The entry of an order in flight, even if it was accepted earlier in this call.
local function entry_of(id)
  for at = 1, length, 2 do
    if outbox_writes[at] == id then return outbox_writes[at + 1] end
  end
  return redis.call('HGET', outbox_key, id)
end

-- A user who orders and cancels all day takes units from others each time. Of a user's ended orders the gate keeps the
-- last ENDED_KEPT (settle.lua); no new one is taken while the oldest of so many is younger than an hour.
local MOST_ENDED, ENDED_SPAN = 8, 3600

-- When an order was made: the first 48 bits of its id are the milliseconds.
local function made_at(id)
  return tonumber(string.sub(id, 1, 12), 16)
end

-- Checks an attempt against the user's orders. Returns a verdict if they decide it; otherwise nil, the units the
-- user holds, those of this item, the first order, and how many ms the user must wait because so many have ended.
local function held(records, sku, key, keyed, fingerprint)
  local units, of_item, first = 0, 0, nil
  local ended, oldest = 0, nil
  for r_id, r_key, r_fingerprint, r_sku, r_quantity in string.gmatch(records, '(%x+)|([^|]+)|([^|]+)|([^|]+)|(-?%d+)') do
    -- An ended order is recorded with minus its units. It counts only if nobody may buy again. Otherwise a click
    -- without its own key is a new order, not a repeat of the ended one.
    local quantity_held = tonumber(r_quantity)
    local counts = quantity_held > 0 or not rebuy
    if not counts then
      ended, oldest = ended + 1, oldest or r_id
    else
      first = first or r_id
      units = units + math.abs(quantity_held)
      if r_sku == sku then of_item = of_item + math.abs(quantity_held) end
    end
    if r_key == key and (counts or keyed == '1') then
      if r_fingerprint == fingerprint then
        local entry = entry_of(r_id)
        if entry then return {'in_flight', entry} end
        return {'settled', r_id}
      end
      if keyed == '1' then return {'key_reused'} end
    end
  end
  local wait = ended >= MOST_ENDED and made_at(oldest) + ENDED_SPAN * 1000 - now or 0
  return nil, units, of_item, first, wait
end

local function decide(id, user, sku, quantity, key, keyed, fingerprint)
  local records = seen[user]
  local verdict, units, of_item, first, ended_wait = nil, 0, 0, nil, 0
  if records ~= '' then verdict, units, of_item, first, ended_wait = held(records, sku, key, keyed, fingerprint) end
  if verdict then return verdict end
  if state == 'closed' or (closes_at and now >= closes_at) then return {'closed'} end
  if state == 'frozen' then return {'frozen'} end
  if state == 'paused' then
    local notice = redis.call('HMGET', sale_key, 'message', 'retry_after')
    return {'paused', notice[1] or '', notice[2] or ''}
  end
  if state ~= 'open' and state ~= 'loading' then return {'closed'} end
  if state == 'loading' or now < opens_at then return {'not_open', sale[2]} end
  if keyed ~= '1' and limit > 1 then return {'key_required'} end
  local wait = rated and limited(user)
  if wait then return wait end
  if units + quantity > limit then
    if limit == 1 and first then return {'already_ordered', first} end
    return {'purchase_limit', limit}
  end
  local most = limit_of(sku)
  if most and of_item + quantity > most then return {'purchase_limit', most} end
  if ended_wait > 0 then return {'rate_limited', 'ended_orders', MOST_ENDED .. '/' .. ENDED_SPAN .. 's', ended_wait} end
  local available = left_of(sku)
  if not available then return {'unknown_sku'} end
  if available < quantity then return {'sold_out'} end
  if waiting >= bound then return {'overloaded'} end

  seq, waiting = seq + 1, waiting + 1
  left[sku] = available - quantity
  stock_writes[sku] = true
  local record = id .. '|' .. key .. '|' .. fingerprint .. '|' .. sku .. '|' .. quantity
  if records ~= '' then record = records .. ',' .. record end
  seen[user] = record
  if not place[user] then
    user_writes[users_length + 1], place[user] = user, users_length + 2
    users_length = users_length + 2
  end
  user_writes[place[user]] = record
  outbox_writes[length + 1] = id
  outbox_writes[length + 2] = entry_begins .. seq .. entry_goes_on .. id .. '|' .. user .. '|' .. sku .. '|' ..
    quantity .. '|' .. key .. '|' .. fingerprint
  age_writes[length + 1], age_writes[length + 2] = now_text, id
  due_writes[length + 1], due_writes[length + 2] = due_text, id
  length = length + 2
  return seq
end

local reply = {epoch, 0, now_text, 0, limit}
-- Verdicts start at the sixth place of the reply.
for at = 6, #ARGV, 7 do
  reply[(at + 36) / 7] = decide(ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]),
    ARGV[at + 4], ARGV[at + 5], ARGV[at + 6])
end
reply[2], reply[4] = seq, waiting

if longest > 0 then
  local writes = {}
  for name in pairs(rate_writes) do
    writes[#writes + 1] = name
    writes[#writes + 1] = string.format('%.3f', arrivals[name])
  end
  if #writes > 0 then
    redis.call('HSET', rates_key, unpack(writes))
    redis.call('EXPIRE', rates_key, longest + 1)
    -- A full bucket is as good as none, so it is deleted. This checks twice as many random buckets as it wrote.
    local ended, random = {}, redis.call('HRANDFIELD', rates_key, #writes, 'WITHVALUES')
    for at = 1, #random, 2 do
      if tonumber(random[at + 1]) < now then ended[#ended + 1] = random[at] end
    end
    if #ended > 0 then redis.call('HDEL', rates_key, unpack(ended)) end
  end
end
if length > 0 then
  redis.call('HSET', outbox_key, unpack(outbox_writes))
  redis.call('ZADD', age_key, unpack(age_writes))
  redis.call('ZADD', due_key, unpack(due_writes))
  redis.call('HSET', users_key, unpack(user_writes))
  for sku in pairs(stock_writes) do redis.call('HSET', items_key, sku, left[sku]) end
  redis.call('HSET', sale_key, 'seq', seq)
end
return reply
