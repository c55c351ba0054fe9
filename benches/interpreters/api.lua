-- Calls of the API from Lua: sorting with a function that compares, functions of strings and numbers.
local t = {}
math.randomseed(7)
for i = 1, 60000 do t[i] = math.random(1000000) end
for k = 1, 1 do table.sort(t, function(a, b) return a < b end); table.sort(t, function(a, b) return a > b end) end
local s = 0
for i = 1, 200000 do s = s + #string.sub("abcdefgh", i % 5, 7) + math.max(i, 5) + select('#', 1, 2, i) end
print(s, t[1])
