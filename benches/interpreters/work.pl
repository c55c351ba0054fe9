my %h; my $s=0;
sub fib { my $n=shift; return $n<2?$n:fib($n-1)+fib($n-2) }
for my $i (1..150000) { $h{"k$i"}=$i; $s+=length("x$i"); }
my @k = sort { $a cmp $b } keys %h;
my $j = join(",", @k); my $c=0; $c++ while $j =~ /k(\d+)5,/g;
print fib(21)," $s $c\n";
