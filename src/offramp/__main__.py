"""python -m offramp"""

from offramp.cli import main

if __name__ == "__main__":
    main()
