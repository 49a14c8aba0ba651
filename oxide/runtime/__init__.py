"""Operations and what runs them."""
