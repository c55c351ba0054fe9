/* Calls a traced function. It is not traced itself. */

typedef struct {
    double first, second;
} pair;

pair both(double x);

void call_both_by(const double *x, pair *results)
{
    *results = both(*x);
}
