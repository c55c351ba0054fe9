local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local t = {}
for i = 1, 100000 do t[i] = tostring(i) end
table.sort(t)
print(fib(31), #table.concat(t))
