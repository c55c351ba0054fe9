// Threads that execute Lua all the time, each a state of its own. The scripts check what they compute.
#include <lauxlib.h>
#include <lualib.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 4 };

static const char script[] =
    "local words = {}\n"
    "for i = 1, 200 do words[i] = string.format('%05d', (i * 7919) % 1000) end\n"
    "table.sort(words, function(a, b) return a > b end)\n"
    "for i = 2, #words do assert(words[i - 1] >= words[i]) end\n"
    "local text = table.concat(words, ',')\n"
    "local n = 0\n"
    "for word in text:gmatch('%d+') do n = n + 1 end\n"
    "assert(n == 200 and #text:gsub('0', 'zero') > #text)\n"
    "local Point = setmetatable({}, {__call = function(self, x, y) return setmetatable({x = x, y = y}, self) end})\n"
    "Point.__index = Point\n"
    "Point.__add = function(a, b) return Point(a.x + b.x, a.y + b.y) end\n"
    "local sum = Point(0, 0)\n"
    "for i = 1, 100 do sum = sum + Point(i, -i) end\n"
    "assert(sum.x == 5050 and sum.y == -5050)\n"
    "local co = coroutine.wrap(function() for i = 1, 50 do coroutine.yield(i * i) end end)\n"
    "local squares = 0\n"
    "for i = 1, 50 do squares = squares + co() end\n"
    "assert(squares == 42925)\n"
    "local ok, why = pcall(function() local t = nil; return t.x end)\n"
    "assert(not ok and why:find('nil'))\n"
    "assert(load('return 1 + 2 * 3')() == 7 and math.floor(7.5) == 7 and tostring(1e100) == '1e+100')\n"
    "assert(utf8.char(228) == '\\xc3\\xa4' and string.pack('<i4', 1) == '\\1\\0\\0\\0')\n"
    "collectgarbage()\n";

static void *work(void *which) {
    for (;;) {
        lua_State *state = luaL_newstate();
        luaL_openlibs(state);
        for (int round = 0; round < 5; round++)
            if (luaL_dostring(state, script)) {
                fprintf(stderr, "%s\n", lua_tostring(state, -1));
                abort();
            }
        lua_close(state);
        // Some of them wait between.
        if ((long)which % 2)
            usleep(1000);
    }
    return 0;
}

int main(void) {
    pthread_t thread;
    for (long which = 0; which < THREADS; which++)
        if (pthread_create(&thread, 0, work, (void *)which))
            abort();
    pthread_join(thread, 0);
}
