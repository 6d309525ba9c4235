-- Sets the count of workers, also over a value that is no integer. Replies the old value. ARGV: count
return redis.call('SET', count, ARGV[4], 'GET') or '0'
