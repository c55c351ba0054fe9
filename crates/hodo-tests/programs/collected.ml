(* Allocates until the collector has run many times, with deep stacks and exceptions. *)
type tree = Leaf | Node of tree * int * tree

let rec make depth = if depth = 0 then Leaf else Node (make (depth - 1), depth, make (depth - 1))
let rec size = function Leaf -> 1 | Node (left, _, right) -> size left + size right + 1

exception Found of int

let rec find n = function
  | Leaf -> if n > 9 then raise (Found n) else n
  | Node (left, _, right) -> find (n + 1) left + find (n + 2) right

let () =
  let long = make 12 and sum = ref 0 in
  for i = 1 to 20 do
    sum := !sum + size (make 12);
    (try ignore (find 0 long) with Found n -> sum := !sum + n);
    if i mod 10 = 0 then Gc.compact ()
  done;
  let table = Hashtbl.create 10 in
  for i = 1 to 10000 do Hashtbl.replace table (string_of_int i) [ i; i + 1 ] done;
  let minor = (Gc.quick_stat ()).Gc.minor_collections in
  Printf.printf "%d %d %d %b\n" !sum (size long) (Hashtbl.length table) (minor > 0);
  exit 3
