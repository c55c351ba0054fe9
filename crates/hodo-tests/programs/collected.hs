-- Allocates until the collector has run, with threads and exceptions.
import Control.Concurrent
import Control.Exception

data Tree = Leaf | Node Tree Int Tree

make :: Int -> Tree
make 0 = Leaf
make depth = Node (make (depth - 1)) depth (make (depth - 1))

size :: Tree -> Int
size Leaf = 1
size (Node left _ right) = size left + size right + 1

main :: IO ()
main = do
  print (sum [size (make (10 + i `mod` 4)) | i <- [1 .. 40 :: Int]])
  failed <- try (evaluate (1 `div` (0 :: Int))) :: IO (Either ArithException Int)
  print failed
  results <- newEmptyMVar
  mapM_ (\i -> forkIO (putMVar results $! sum [1 .. i * 1000 :: Int])) [1 .. 20]
  total <- mapM (const (takeMVar results)) [1 .. 20 :: Int]
  print (sum total)
