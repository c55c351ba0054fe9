// Threads that use SQLite all the time, each a database of its own in memory. They check what they read.
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 4, ROWS = 400 };

static void run(sqlite3 *db, const char *text) {
    char *error = 0;
    if (sqlite3_exec(db, text, 0, 0, &error)) {
        fprintf(stderr, "%s: %s\n", text, error);
        abort();
    }
}

static long long number(sqlite3 *db, const char *text) {
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(db, text, -1, &statement, 0) || sqlite3_step(statement) != SQLITE_ROW)
        abort();
    long long result = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return result;
}

static void check(long long got, long long expected) {
    if (got != expected) {
        fprintf(stderr, "%lld instead of %lld\n", got, expected);
        abort();
    }
}

static void *work(void *which) {
    for (;;) {
        sqlite3 *db;
        if (sqlite3_open(":memory:", &db))
            abort();
        run(db, "create table t(id integer primary key, a int, s text); create index i on t(a, s); begin");
        sqlite3_stmt *insert;
        if (sqlite3_prepare_v2(db, "insert into t(a, s) values(?, printf('%08d', ?1 * 7))", -1, &insert, 0))
            abort();
        for (int row = 0; row < ROWS; row++) {
            sqlite3_bind_int(insert, 1, row % 40);
            if (sqlite3_step(insert) != SQLITE_DONE)
                abort();
            sqlite3_reset(insert);
        }
        sqlite3_finalize(insert);
        run(db, "commit");
        check(number(db, "select count(*) from t where a between 10 and 19"), ROWS / 4);
        check(number(db, "select sum(length(s)) from t"), 8 * ROWS);
        check(number(db, "select count(*) from (select a, max(s) m from t group by a having m > '' order by m)"), 40);
        check(number(db, "select count(*) from t x join t y on x.id = y.id + 1 where x.s like '%1%'") > 0, 1);
        check(number(db, "with recursive c(n) as (select 1 union all select n + 1 from c where n < 200) "
                         "select sum(n) from c"),
              20100);
        run(db, "update t set a = a + 1 where a % 3 = 0; delete from t where a > 38; vacuum");
        check(number(db, "select count(*) from pragma_integrity_check where integrity_check = 'ok'"), 1);
        sqlite3_close(db);
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
